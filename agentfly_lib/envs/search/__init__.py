"""Search: questions that are answered with the help of an index over a corpus."""
