"""The only place where words become shell code and scheduler directives."""
