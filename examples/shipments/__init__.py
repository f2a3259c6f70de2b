"""Shipment updates for subscribers: an authenticated endpoint of the application's own, on top of admission."""
