"""What a DAG author imports: operators, hooks, sensors and triggers; thin around the engine in `include`."""
