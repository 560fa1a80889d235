"""Between front ends and the engine: messages, sockets, the child process, and three clients of one interface."""
