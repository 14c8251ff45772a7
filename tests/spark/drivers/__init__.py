"""Programs that drive Spark in processes of their own."""
