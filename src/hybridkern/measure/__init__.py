"""How fast a model is: workloads and their times, alone or beside peers in processes of their own."""
