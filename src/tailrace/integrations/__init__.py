"""tailrace inside other engines: one package or file per engine. Each imports its engine lazily, and the rest of
tailrace imports none of them."""
