"""From a user's request to a job that is checked and ready to be submitted; no command line in it.

``job`` holds the stages, in order; every other module here is one of them.
"""
