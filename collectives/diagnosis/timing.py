"""Every duration on which a verdict depends. In seconds, unless the name ends in NS.

Two more belong to the recorder, which imports nothing from here: a rank looks for questions every
0.05 s (recording/rank_log.py), and a call is read once it is 0.1 s old (recording/call_log.py).
"""

# How often the ranks' logs are read.
POLL = 0.02

# And so often once nothing has moved for QUIET. A rank then fills its log (call_log.SLOTS) before
# it is read only if it makes a call each 12 us, which is less time than it takes to note one.
POLL_QUIET, QUIET = 0.05, 1.0

# The calls are compared so often at first, and then ever more rarely while nothing moves.
JUDGE, JUDGE_AT_LEAST = 0.1, 0.5

# A fault must stay the same for so long, while nothing moves, before it is reported: all logs are
# of one moment then.
STABLE = 0.6

# A rank that runs has answered a question by then.
ANSWER = 0.25

# Which processes a program has is looked up so often, while nothing moves.
LOOK_AT_PROCESSES = 1.0

# A launcher that sees a rank fail ends the others, but not sooner than this. A rank that ended,
# nobody knows how, within this time after the first failure may have ended by itself.
LAUNCHER_REACTS_NS = 60_000_000

# A launcher has so long to end the other ranks after one raised or died; the report names the first
# one anyway.
LAUNCHER_ENDS_RANKS = 10.0

# When all ranks are gone, the launcher has so long to end, or to start them again.
LAUNCHER_ENDS = 60.0

# Nodes whose ranks end exchange what they know so often: it may be their last chance.
EXCHANGE = 0.05

# A node asks so often which machines the others are, until it knows them all.
FIND_MACHINES = 1.0

# The store of a job on several nodes has so long to answer.
STORE_ANSWERS = 5.0
