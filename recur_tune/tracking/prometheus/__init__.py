"""State of a search -> metrics -> exporter -> Prometheus -> Grafana's dashboards, and the servers of both."""
