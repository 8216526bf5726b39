"""Order: from the lengths of the series to which samples there are (views) and when each comes (orders). Knows no store."""
