"""`moldau serve --secure`: a CA, a certificate, the first user, and files of client settings."""
