"""What built-in services share: doors, pages, bodies, queue, metrics text, and the way a service starts and stops."""
