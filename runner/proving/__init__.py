"""``prove``: a ladder of rungs that shows what works on GPUs, and the record that it leaves."""
