"""Reservations that expire: a conditional transition by the reservation's clock, and a delivery by the database's."""
