"""The record that ORDER asks for, as all clients' users would declare it."""

from __future__ import annotations

from pydantic import BaseModel


class Order(BaseModel):
    """Somebody from a city wants so many of an item at a price."""

    customer: str
    item: str
    quantity: int
    price: float
    city: str
