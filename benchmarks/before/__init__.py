"""The slow ways that users have today, written anew and fairly: warmed up, as their authors run them."""
