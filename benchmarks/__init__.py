"""Speed of whole steps, beside what a user would run instead. Speed is measured here and asserted nowhere."""
