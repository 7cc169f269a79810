"""Pictures as SVG: each with a title, a description in words, and a table of what it shows."""
