mod planes;
