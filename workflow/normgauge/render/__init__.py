"""Result tables and figures, from parquet files alone."""
