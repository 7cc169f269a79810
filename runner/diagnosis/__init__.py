"""What is known of failures, as data: how each is recognised, what causes it, how it is fixed and by whom."""
