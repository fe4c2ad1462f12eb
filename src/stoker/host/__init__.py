"""What this host is and gives: processors, memory, pages, processes."""
