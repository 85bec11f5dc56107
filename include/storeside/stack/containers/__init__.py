"""The programs that the containers of docker-compose.yaml run."""
