"""Whether training goes at the speed it had, and to where it should: throughput, stragglers, loss and
gradients."""
