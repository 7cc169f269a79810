"""The only place where arguments become shell code and scheduler directives."""
