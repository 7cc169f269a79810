"""Reads a script in the order in which it runs, and follows what depends on rank and size.

Calls of functions of the same files are followed with their arguments; a loop's body is read once; both branches of an
``if`` are read, each with what its condition says of the rank. Nothing is run or imported.

`script.read` is the whole of it. One function stands for each kind of statement (`statements`) and of expression
(`expressions`); they call each other through the `reader.Reader`, which holds what changes on the way.
"""
