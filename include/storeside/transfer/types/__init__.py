"""How values of one type become values of another, and which types hold both."""
