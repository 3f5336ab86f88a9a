"""`moldau pipeline report`: figures from a lake, and the HTML page that shows them."""
