"""Feed: from a store and an order to batches on the device."""
