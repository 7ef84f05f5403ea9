"""The textbook algorithms of the collectives, as schedules: data that says who sends what to whom.

Read them in this order: each file is the one before plus one idea. The worked numbers are the same
everywhere: rank 0 holds 1 2 3 4, rank 1 ten times that, rank 2 a hundred times, rank 3 a thousand
times; their sum is 1111 2222 3333 4444.

direct, chain, ring, binomial_tree, recursive_doubling, halving_doubling, pairwise, dissemination,
bruck, double_tree, hierarchical

>>> from collectives.algorithms import recursive_doubling
>>> [int(step.to) for step in steps(recursive_doubling.all_reduce(0, 8))]
[1, 2, 4]
"""
