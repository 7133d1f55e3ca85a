"""`python -m benchmarks`"""

from benchmarks.peers import main

main()
