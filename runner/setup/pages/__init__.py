"""The pages as a site with search: ``make docs``."""
