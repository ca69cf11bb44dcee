-- Prefect's database is made by the image itself; MLflow wants one of its own.
CREATE DATABASE mlflow;
