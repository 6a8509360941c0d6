"""What the scripts of test_tipc do: read a text of `key:value` lines, run the stages that it describes."""
