"""kalstream under the interfaces of other libraries: river."""
