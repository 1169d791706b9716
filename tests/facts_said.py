"""A fact of each kind that is asked for, and the value in each of them."""

GOAL = "Help me to move the gauge service to Nuuk."
RULE = "Never touch the branch main."
DECISION = "We decided to keep SQLite instead of another database."
PATH = "The migration lives in db/migrations/0007_gauges.sql since today."
NUMBER = "The gauge in Ribe is read every 450 ms."
FACTS = [GOAL, RULE, DECISION, PATH, NUMBER]
VALUES = ["service", "branch", "database", "db/migrations/0007_gauges.sql", "450 ms"]
