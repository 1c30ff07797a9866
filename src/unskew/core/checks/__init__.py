"""What is checked of users' code: names when a class is made, results and inputs of slots, and who failed where."""
