"""Child processes of one server: started, replaced when they die, stopped in order."""
