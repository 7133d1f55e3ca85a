"""The verbs: each state change is one function here and one statement in `store/sql`, by the same name.

A verb takes the transaction first, never opens one and never catches. Verbs of one statement may be
given the database itself.
"""
