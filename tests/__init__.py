"""Tests, in folders by kind. A package, so that no other one of that name can stand before it."""
