drop index outrider.delivery_to_retry;
