"""`python -m counterpoint` is `counterpoint`."""

from counterpoint.cli import main

main()
