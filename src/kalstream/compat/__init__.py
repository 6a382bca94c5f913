"""kalstream's learners in the interfaces of other libraries: river."""
