"""From recipe, site, request and image to a plan: pure, no file and no clock."""
