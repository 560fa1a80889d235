"""tailrace inside engines that people already run: one package or file per engine. Each imports the engine lazily, and
none is imported by the rest of tailrace."""
