"""Which classes are close to each other: taxonomies as data files."""
