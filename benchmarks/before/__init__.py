"""The slow ways that users have today, rewritten and fairly: warmed up, as their authors run them."""
