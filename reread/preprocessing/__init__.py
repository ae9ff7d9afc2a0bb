"""Raw data to prepared arrays: where data comes from, how it is checked, and what training reads."""
