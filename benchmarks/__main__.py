"""`python -m benchmarks`"""

from benchmarks.foundation import main

main()
