"""Sites: the shipped files, a user's own, and what is known of them."""
