"""The engine's verbs. Each state change is one function here and one statement in `store/sql`, by the same name.

A verb takes the transaction first; it never opens one, and never catches. A verb that is a single statement may be
given the database itself.
"""
