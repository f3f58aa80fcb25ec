"""Tables beside the paper's, pictures, one HTML page."""
