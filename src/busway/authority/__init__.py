"""Users, their grants, and how they prove who they are. Every door asks this one authority."""
